"""What people run the service by: metrics, dashboard, alerts, compose file, pages."""
