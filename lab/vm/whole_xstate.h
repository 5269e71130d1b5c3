/*
 * Lengthens what user-mode Linux writes of a process's extended processor state (XSAVE), for Linux before 6.13.
 *
 * The kernel of a machine takes this state whole or not at all (EFAULT), and with AMX it has 11,008 bytes instead of the
 * 2,696 that user-mode Linux knows: the guest's first process would be ended. Beyond these bytes is only what a process
 * has to ask for (ARCH_REQ_XCOMP_PERM), which those of the guest do not. A longer buffer is cut by the machine's kernel.
 *
 * arch/x86/um/os-Linux/registers.c includes this file after its own headers: see kernel.py.
 */
#include <string.h>

static long set_whole_xstate(int pid, const struct iovec *known)
{
	static char state[1 << 14]; /* the guest has one processor, and is not interrupted here */
	struct iovec whole = {state, sizeof(state)};

	memcpy(state, known->iov_base, known->iov_len);
	return ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

#define ptrace(request, pid, address, data)                                                                            \
	((request) == PTRACE_SETREGSET ? set_whole_xstate(pid, (const void *)(data)) : ptrace(request, pid, address, data))
