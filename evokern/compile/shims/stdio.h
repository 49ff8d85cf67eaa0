// NVRTC provides printf; files are available only on the host.
#pragma once
#include "stddef.h"
