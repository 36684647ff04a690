"""`python -m minitrain.grading`: what keeps submissions apart on this machine."""

from minitrain.grading.confinement import PROPERTIES
from minitrain.grading.sandbox import probe

found = probe()
print(f"isolation: {found}")
for name in PROPERTIES:
    print(f"  {name}: {', '.join(found.held_by(name)) or 'not held by the kernel'}")
