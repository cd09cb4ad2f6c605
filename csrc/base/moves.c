#include "moves.h"

_Thread_local unsigned coll_moves;
