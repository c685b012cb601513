"""Readers of what NVIDIA's tools print, one module a format; none needs torch or the tool."""
