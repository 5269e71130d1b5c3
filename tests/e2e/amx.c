/*
 * Stands for the kernel of a machine whose processor has AMX: it takes the processor's state of a process whole or not
 * at all, and the whole has 11,008 bytes. Preloaded by test_vm.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { WHOLE = 11008 };

long ptrace(enum __ptrace_request request, ...)
{
	static long (*kernel)(enum __ptrace_request, ...);
	va_list list;

	va_start(list, request);
	pid_t pid = va_arg(list, pid_t);
	void *address = va_arg(list, void *);
	void *data = va_arg(list, void *);
	va_end(list);
	if (!kernel)
		kernel = dlsym(RTLD_NEXT, "ptrace");
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE && ((struct iovec *)data)->iov_len < WHOLE) {
		errno = EFAULT;
		return -1;
	}
	return kernel(request, pid, address, data);
}
