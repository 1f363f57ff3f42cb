"""TOML, in the form that a person who wrote a config file needs it: every key with its line, every problem at once.

`document` reads files, changes values and words what is wrong; `lines` finds where each key stands; `writing` writes
tables as TOML, and shows a value in a message. Nothing here knows what a key means: that is `regard.config`.
"""
