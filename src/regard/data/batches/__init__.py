"""From stored tokens to batches: any batch of any epoch is reached at once, from its number alone."""
