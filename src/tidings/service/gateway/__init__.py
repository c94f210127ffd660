"""The gateway: HTTP in front, the log and the mailboxes behind.

An event's way in:

    connections          HTTP/1.1 with limits on connections, sizes and times
    app                  the application: routes, middleware, one form of errors
    publishing           from a request's body to positions in the log
    security             tokens and hosts, and where the service listens
    request_bodies       bodies, received within bounds and read as strict JSON
    event_formats        CloudEvents, plain JSON, JSON lines and XML
    catalogue_cache      the domains and subscriptions that the catalogue has
    tenant_use           counts what tenants use, and refuses what exceeds a quota

A notification's way out:

    mailbox_watch        wakes those who wait when the driver has loaded something
    mailbox_reading      what a subscription has waiting, with the texts of the events
    fetching             long polls, acknowledgements, Server-Sent Events
    webhooks             which webhook is sent next, and again after a failure
    webhook_sending      one attempt at a webhook

Routes:

    domain_routes        domains, and publishing
    subscription_routes  subscriptions
    api_models           bodies as Pydantic models
    delivery_routes      notifications, streams, acknowledgements, dead letters
    filter_routes        tests and backtests of filters, and the matches of an event
    health_routes        health and metrics
    openapi              the OpenAPI document, and the page that shows it
    problems             every error as `application/problem+json`

Behind them:

    gateway_process      the process: options, signals, sockets
    gateway_context      everything that a gateway has open
    gateway_stores       the stores that are open, and the threads that use them
    gateway_settings     settings, quotas, retention limits
    domain_changes       adds and changes domains
    subscription_changes creates, changes, expires and deletes subscriptions
    filter_evaluation    which subscriptions an event matches now, and which XML nodes one selects
    retention            removes from the log what nobody needs
    driver_lag           how far the driver is behind
    gateway_metrics      counters for Prometheus
    scheduling           fair slots and threads, repeated work
"""
