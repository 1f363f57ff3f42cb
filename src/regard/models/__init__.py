"""Models: parts combined under one interface, so that one loss and one search serve all of them."""
