"""Data sets: named ones, image folders, `.npz` files and tables, read as tensors."""
