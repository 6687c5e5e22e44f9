"""What arrives when: workload specifications, presets and trace readers. Knows no server and sends nothing."""
