"""The papers' experiments again, on a virtual clock: what each paper claims beside what we see."""
