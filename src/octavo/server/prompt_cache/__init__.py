"""What requests ask of the prompt cache, what they are told it did, and why it did no more."""
