"""What follows from the data and the device, where nobody has set it: one file for each way to train."""
