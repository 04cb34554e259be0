"""Lists of worker deployments over real gRPC."""

import temporalio.api.workflowservice.v1 as api

from tests.frontend.served import code_and_message, serving


async def test_the_pages_of_a_list_of_deployments_have_each_deployment_once() -> None:
    async with serving() as served:
        for name in ("a", "b", "c"):
            await served.workflow.CreateWorkerDeployment(
                api.CreateWorkerDeploymentRequest(namespace="default", deployment_name=name)
            )
        request = api.ListWorkerDeploymentsRequest(namespace="default", page_size=2)
        first = await served.workflow.ListWorkerDeployments(request)
        request.next_page_token = first.next_page_token
        second = await served.workflow.ListWorkerDeployments(request)
        pages = [[one.name for one in page.worker_deployments] for page in (first, second)]
        assert (pages, second.next_page_token) == ([["a", "b"], ["c"]], b"")


async def test_an_invalid_page_token_is_refused() -> None:
    async with serving() as served:
        request = api.ListWorkerDeploymentsRequest(namespace="default", next_page_token=b"garbage")
        found = await code_and_message(served.workflow.ListWorkerDeployments(request))
        assert found == ("INVALID_ARGUMENT", "Invalid NextPageToken.")
