"""A fleet on a virtual clock. It imports production's decisions and re-implements none of them."""
