"""The CPU kernels: everything that computes numbers fast, on plain addresses, knowing nothing of the compiler.

A builder describes one task as a `Call` (kernel name, parts, descriptor, what must stay alive);
`desc.task_table(calls)` turns calls into the int64 [n, 3] table that `npusim.executor.Executor(threads).run(table)`
executes. Kernels are generated as LLVM IR on first use and kept as object code (`store`). dtypes are the strings f16
bf16 f32 i8 u8 i16 i32 i64 b8; addresses are ints; strides are bytes. fp16 and bf16 are fp32 inside, one rounding at
the store; `saturate=True` is the 310P overflow rule. Products of i8 give i32, exact while sums stay within 2**24.

    conv.Conv2D(n, c, h, w, o, kernel, strides, pads, dilations, groups, c0_in, c0_out)       c0: 8, 16; in 4, 32
    conv.pack_conv(shape, weights OIHW, bias=None, dtype=None) -> PackedConv                   any groups; bf16 as bits
    conv.conv2d(shape, x, packed, out, (in dtype, out dtype), epilogue=None) -> Call           NC1HWC0 both sides
    winograd.pack_winograd(planes [(m+2)^2, O, I], m, bias=None) -> PackedWinograd               3x3, stride 1
    winograd.winograd2d(shape, x, packed, out, (in dtype, out dtype), epilogue=None, rounding, scale) -> Call
    fourier.pack_spectrum(filters [O, I, KH, KW], edge, bias=None) -> PackedSpectrum             stride 1, large windows
    fourier.pack_depthwise_spectrum(filters [C, 1, KH, KW], edge, bias=None) -> PackedSpectrum
    fourier.fourier2d(shape, x, packed, out, (in dtype, out dtype), workspace, epilogue=None) -> [Call, …]
    epilogue.Epilogue(residual=0, activation="none", lo, hi, alpha, saturate)                  residual may be `out`
    matmul.Matrix.nd(address, dtype, columns, row_bytes=None) / .nz(address, dtype, stored rows, c0=16), `.t` transposes
    matmul.pack_matmul(b [..., K, N], dtype=None) -> PackedB                                   bf16 as bits
    matmul.pack_b_at_run_time(b: Matrix, k, n, offsets=(0,)) -> (PackedB, Call)                run the Call first
    matmul.matmul(m, k, n, a: Matrix, b: PackedB, out: Matrix, bias=None, batch=Batch(a, b, out), epilogue=None) -> Call
    pool.Pool2D(planes, h, w, kernel, strides, pads, dilations, ceil_mode, count_include_pad, c0)  planes = N * C1
    pool.pool2d(shape, "max" | "avg", x, out, dtype, saturate=False) -> Call                   global: kernel = (h, w)
    elementwise.View(address, dtype, strides) / View.dense(address, dtype, shape, onto=None)   broadcasts to `onto`
    elementwise.elementwise(expression, inputs, out: View, shape, parameters=(), saturate=False) -> Call
        relu(add(x0,x1)), clip(x0,p0,p1), where(x0,x1,x2), less(x0,x1), cast = x0; list: expressions.functions()
    rows.RowShape.axis(shape, axis, (source, dtype), (target, dtype)) / .nz(batch, m, n, stored rows, c0, …) -> 3-tuple
    rows.softmax(*that, log=False, saturate=False) -> Call
    rows.layer_norm(*that, gamma, beta, parameter dtype, epsilon, rms=False, saturate=False) -> Call
    reduce.reduce("sum" | "mean" | "max" | "min" | "prod" | …, source: View, shape, axes, out, out dtype) -> Call
    move.copy(element bytes, source, source strides, target, target strides, shape) -> Call
        transpose, slice, concat and pad (one Call a piece)
    move.fill(numpy scalar, target, target strides, shape) -> Call
    move.gather(data, axis_size, outer, inner_bytes, indices, index dtype, count, out, index_groups=1) -> Call
    transdata.Plain.nchw / .nhwc / .matrix(address, dtype, shape)
    transdata.to_blocked(plain, target, dtype, c0, stored_pixels=None, saturate=False) -> Call
        pads lanes and pixels with zeros
    transdata.from_blocked(source, dtype, c0, plain, stored_pixels=None, saturate=False) -> Call

Bytes of a Call are read when it runs: an address that changes needs a new Call (or its descriptor fields patched).
`store.set_progress`, `store.prepare`, `store.warm` serve command lines.
"""
