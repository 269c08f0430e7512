"""What runs next: requests, the scheduler, the step loop."""
