"""Models: parts put together. Every one of them answers to the contract in `contract`, so one search serves all."""
