"""Model building, the training loop and checkpoints.

Also a user's own Keras objects (`user_*.py`) in a run. What happens to the trained
model is in `evaluation` and `export`.
"""
