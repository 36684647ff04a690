"""`python -m minitrain.grading`: print how this machine would isolate a submission's process, and from what."""

from minitrain.grading.confinement import PROPERTIES
from minitrain.grading.sandbox import probe

found = probe()
print(f"isolation: {found}")
for name in PROPERTIES:
    print(f"  {name}: {', '.join(found.held_by(name)) or 'not held by the kernel'}")
