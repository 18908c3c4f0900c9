"""Training: loop.py (one run), update.py (one step), graphs.py, losses.py, checkpoint.py, device.py, golden.py."""
