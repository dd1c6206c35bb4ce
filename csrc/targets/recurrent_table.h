// The kernels of recurrent layers, of one instruction set.

constinit const RecurrentKernels recurrent = {conv_columns, delta_rule, scan};
