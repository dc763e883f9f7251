"""Samples for training, without knowing who trains: `fsstore.interop.torch` shows them to PyTorch.

`order` says which samples a worker takes and in which order, as plain arithmetic; `samples` reads them; `passes` goes
once through a share of them, batch by batch.
"""
