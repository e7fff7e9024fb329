"""What Holdfast does: the verbs of each noun, written down by one pen."""
