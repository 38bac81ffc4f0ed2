"""Networks at the size that papers use, beside the small ones of `architectures.py`."""
