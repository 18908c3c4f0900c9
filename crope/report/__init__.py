"""Tables, figures and a page from run records. Nothing below this package imports torch or wandb."""
