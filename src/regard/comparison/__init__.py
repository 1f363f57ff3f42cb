"""Models beside each other: every step of the road on the same data, and trained models on the same test."""
