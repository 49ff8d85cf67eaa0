"""What a CUDA file states about a kernel: its launch, template arguments and sizes of buffers."""
