"""Kernels written in Triton; importing one needs the package triton."""
