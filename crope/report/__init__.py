"""From run records to tables, claims, studies, figures and a page.

Nothing here imports torch or wandb.
"""
