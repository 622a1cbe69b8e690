// What the stepper itself does with a Dict, beyond vecenv.h.

#ifndef PUFFER_DICT_H
#define PUFFER_DICT_H

#include "../include/vecenv.h"

void puffer_free_dict(Dict* dict);

#endif
