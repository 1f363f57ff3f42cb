"""Make a model's attention visible: record it, store it as a trace, draw it, show it in a browser."""
