"""What stands between the matrix products of a block, each in one kernel. They know no blocks and no models."""
