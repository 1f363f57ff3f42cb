"""What the sources of the field claim, each as a measurement and a judgement of its numbers."""
