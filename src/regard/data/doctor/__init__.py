"""The data doctor: which pairs training would leave out and why, what is odd about the rest, and how long it all is."""
