"""What a long computation carries along: checkpoints, atomic files, the limit of memory."""
