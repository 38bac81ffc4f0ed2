"""Networks at the sizes of papers, in addition to the small ones of `architectures.py`."""
