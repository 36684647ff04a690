"""Write a distributed training strategy once; price it, prove it, see it, teach with it."""
