// The fields of Kernels after its name, in order. Included in the initialiser of each instruction set's table.
gemm_store, gemm_add, gemm_gated, rmsnorm, rmsnorm_inplace, rmsnorm_add, narrow, squash, rotate, hadamard, append_key,
    append_value, attend, merge, finish, row_max, sum_exp, exp_into, burst, read_all, 4 * kLanes* kBurstChains
