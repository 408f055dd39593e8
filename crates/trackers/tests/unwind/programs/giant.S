/* As many functions as a library of a hundred megabytes has. Nobody calls them. */
	.text
	.rept 200000
	.cfi_startproc
	push %rax
	.cfi_adjust_cfa_offset 8
	pop %rax
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.endr
	.section .note.GNU-stack,"",@progbits
