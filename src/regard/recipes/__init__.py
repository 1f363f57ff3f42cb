"""Presets of the road, from the recurrent network to the Transformer, as TOML files. `catalog` finds them."""
