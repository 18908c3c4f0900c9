"""From run records to evidence, tables, figures and a page.

Nothing here imports torch or wandb.
"""
