"""From stored tokens to batches; any batch of any epoch is computed from its number alone."""
