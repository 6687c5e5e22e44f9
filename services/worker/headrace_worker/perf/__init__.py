"""The roofline: what a card, a model and a layout can do. Pure: standard library and numpy, no I/O, no clock."""
