"""Training: loop.py (one run's steps), losses.py, checkpoint.py, device.py, golden.py."""
