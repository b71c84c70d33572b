"""Cost of kernels on a chip: the one source of cycles for choosing tiles and for simulating runs.

``view`` states what a kernel moves and computes, ``estimate`` ranks tile candidates in closed form, ``streams`` derives
the instructions of a core, ``engine`` executes them pipe by pipe. All are functions of a kernel and a target.
"""
