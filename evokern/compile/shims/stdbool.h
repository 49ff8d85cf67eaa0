// bool, true and false are keywords of C++.
#pragma once
#define __bool_true_false_are_defined 1
