// Short names of sys/types.h that nvcc's implicit stdlib.h brings on Linux.
#pragma once
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
