"""Models: parts put together behind one contract, so that one loss and one search serve all of them."""
