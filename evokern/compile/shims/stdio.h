// printf is NVRTC's own; files belong to the host.
#pragma once
#include "stddef.h"
